"""What runs inside the process of an engine that `tilewright bench` times.

Engines conflict in one environment, so each may live in an interpreter of its own, which has neither Tilewright nor
onnx. Hence the rules of this folder: it imports the standard library, numpy and itself (by relative names, because it
is not found under `tilewright` there); an engine is imported when it is made.
"""
