"""A report about one model on one machine: its data (`data.py`), and the page that shows it (`page.py`).

Nothing here compiles or runs anything: `cli/report.py` collects what there is to show.
"""
