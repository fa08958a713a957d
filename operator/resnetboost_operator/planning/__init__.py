"""Planning: from a job's observed state to the next actions, one policy per file. No requests, processes or clock."""
