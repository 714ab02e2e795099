"""Families with recurrent layers, most of them next to attention."""
