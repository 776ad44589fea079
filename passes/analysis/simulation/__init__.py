"""The discrete-event simulation of a scheduled step."""
