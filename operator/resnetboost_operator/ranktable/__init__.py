"""HCCL's rank tables: creates them from the device plugin's annotations, reads, merges and checks them.

No cluster, no files.
"""
