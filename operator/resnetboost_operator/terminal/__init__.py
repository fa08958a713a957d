"""What a person at a terminal types and sees; everything else is imported when it is needed."""
