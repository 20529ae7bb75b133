"""Engines: move messages between a coordinator and sites under a schedule. They contain no mathematics."""
