"""Coroutines over the plain API."""
