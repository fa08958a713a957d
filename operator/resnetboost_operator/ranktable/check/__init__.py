"""Checks rank tables as HCCL's parsers do. `rules` lists every rule.

The checks are in `server_list` (versions 1.0 and 1.2), `super_pods` (1.2, A3), `rank_list` (2.0, 950), `group_list`
(template 2), and for all of them in `ranks`, `device_cards` and `networks`.
"""
