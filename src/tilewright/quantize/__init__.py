"""Models of floats to models of fewer bits, layer by layer, under one bound on the error of the whole network.

`quantize` does it all; `cli/quantize.py` is its command. Layers (`layers.py`) may be stored and computed in several
forms (`forms.py`). What each costs is measured in programs that have it everywhere (`timing.py`); what each does to
the results, in one program in which all forms can be turned on (`simulation.py`). `plan.py` weighs one against the
other, and `write.py` makes the file.
"""
