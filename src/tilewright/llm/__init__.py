"""Language models: from a folder of weights to a model in 4 bits, and from a prompt to an answer.

    config.json, *.safetensors ── convert ──> model.onnx, its cache of keys and values in place
        ── tilewright.load ──> a program for all lengths ── TextGenerator ──> tokens

Nothing in here knows how a program is compiled: the model is ONNX that other engines run too.
"""
