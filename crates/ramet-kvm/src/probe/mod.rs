//! What this host offers, for `ramet doctor`.
