"""The table of ATen overloads, with one row each; op classes and rules are made from the rows."""
