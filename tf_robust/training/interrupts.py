"""A clean stop on Ctrl-C."""

import signal
import threading


class StopOnInterrupt:
    """Context in which the first Ctrl-C sets an event, and the second raises. Unless `enabled`, the first one raises."""

    def __init__(self, enabled: bool):
        self.event, self.main = threading.Event(), enabled and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> threading.Event:
        if self.main:
            self.previous = signal.signal(signal.SIGINT, self._handle)
        return self.event

    def _handle(self, *_):
        print("\nStopping after these steps; press Ctrl-C again to stop at once.", flush=True)
        signal.signal(signal.SIGINT, self.previous)
        self.event.set()

    def __exit__(self, *_):
        if self.main:
            signal.signal(signal.SIGINT, self.previous)
