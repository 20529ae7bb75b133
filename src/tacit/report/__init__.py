"""Figures and reports, made of released values only. Needs the extra `tacit[report]`."""
