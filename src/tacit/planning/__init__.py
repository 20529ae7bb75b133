"""Before any data: policies learned on public or simulated tasks, and what a budget is expected to buy."""
