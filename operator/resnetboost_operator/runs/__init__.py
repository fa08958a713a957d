"""The folder a run leaves behind: its files, what a later run may do with them, its report; nothing runs here."""
