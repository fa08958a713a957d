"""The controller around the plan: watches the API server, carries plans out, is the only writer. No decisions."""
