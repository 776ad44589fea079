"""From a lowered step to the text of the program that ranks run."""
