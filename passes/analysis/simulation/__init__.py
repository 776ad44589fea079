"""The discrete-event simulation of a scheduled step: what ranks do, on what, when, and what that comes to."""
