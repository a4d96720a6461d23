"""Other engines, behind the methods that `tilewright.cli.guest` lists. All keep float32 as it is.

Each runs in an interpreter that may have nothing but numpy and the engine, so these modules import no more than that;
an engine is imported when it is made. To add one: a class here, and a row in `benchmarks/catalogue.py`.
"""
