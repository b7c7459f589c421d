"""genomoe.training"""
