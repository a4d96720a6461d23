"""What runs inside the process of an engine that `tilewright bench` times.

Engines conflict in one environment, so each may live in an interpreter of its own, which has neither Tilewright nor
onnx. Hence the rules of this folder: it imports the standard library, numpy and itself (by relative names, because it
is not found under `tilewright` there); an engine is imported when it is made.

An engine is a class with these few methods:

    Engine(job, progress)   load the model with as many threads as the job says (timed as `load`)
    bind(feeds)             hand over the inputs, by name, in the model's order; not timed
    run()                   one synchronous inference: what is timed
    results()               the arrays of the last run, in the order of the model's outputs
    version

ONNX Runtime is one (`ort`). Others are classes outside of this package, named as `module:Class`. A class may have
`answer(do, command)` besides, for commands of its own (`serve`).
"""
