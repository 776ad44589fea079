"""The page of `shardwright report`: one HTML file that shows a plan, its predicted step, and the reasons for it."""
