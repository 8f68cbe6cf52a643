"""Run code on a throwaway coroutine: look ahead, search for a remedy, verify, query."""
