// Holds the one precompiled header that every target reuses.
