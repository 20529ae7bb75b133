"""Federated methods: what a coordinator and its sites compute, and the messages between them."""
