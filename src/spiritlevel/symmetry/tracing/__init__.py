"""A network as a graph, and the walks that find its symmetries there."""
