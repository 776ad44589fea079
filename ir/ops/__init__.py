"""
What the compiler knows of each ATen overload: one row of a table, from which op classes and rules are made.
"""
