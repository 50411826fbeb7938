"""Freewheel: train a network cut into K stages without making the stages wait for each other."""
