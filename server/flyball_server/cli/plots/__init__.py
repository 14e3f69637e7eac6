"""Plots of plans and frontiers, colours and traces."""
