"""Job files checked without a cluster, against the CRD itself; nothing here runs or plans anything."""
