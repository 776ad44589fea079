"""What passes know of time: which ops work on parts of the batch, what an axis of parts is, and how it is unrolled."""
