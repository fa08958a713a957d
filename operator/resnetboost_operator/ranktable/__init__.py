"""HCCL's rank tables: made from what the device plugin tells, checked as HCCL would; it touches no file, no cluster."""
