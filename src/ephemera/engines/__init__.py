"""Engines: each keeps rows and satisfies `ephemera.core.keyvalue.KeyValue`."""
