"""The loop of a temporal axis unrolled: a copy of its ops for each part, and the order in which copies take turns."""
