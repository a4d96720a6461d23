"""Recipes: ordinary functions that compose steps into a good default schedule.

They look at the structure of a Func, never at what op it came from.
"""
