"""oneDNN as a plugin: its C API (`library`), chains of nodes that are one primitive (`chains`), how a region becomes
primitives (`plugin`), and how these run (`program`).
"""

from tilewright.plugins.onednn.plugin import OneDnn as OneDnn
