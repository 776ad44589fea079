"""
The table of ATen overloads: one row each, from which op classes and rules are made.
"""
