"""Object stores, trackers and launchers, which are loaded when they are named."""
