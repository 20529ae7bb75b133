"""Engines move messages between a coordinator and sites under a schedule; they know no mathematics."""
