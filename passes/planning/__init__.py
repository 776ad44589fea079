"""The search over whole plans: layouts over devices and time, each with a strategy, judged by their simulated step."""
