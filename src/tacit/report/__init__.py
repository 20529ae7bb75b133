"""Figures and reports, made from released values only. Needs the extra `tacit[report]`."""
