"""Ops, each declared once: `docs/adding-an-op.md`."""
