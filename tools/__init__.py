"""genomoe.tools"""
