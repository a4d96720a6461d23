"""FX graphs of ATen operators as ONNX models, in memory.

Through ONNX, what PyTorch models need of import, open dimensions, host nodes, caching, comparing and reporting is there
already. Nothing here imports torch: graphs bring their objects along, and operators are known by their names.
"""
