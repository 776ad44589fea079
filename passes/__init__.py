"""One pass, one file, named as in the pipeline string."""
