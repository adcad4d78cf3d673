"""How results are shown: text tables, figures in one style, and self-contained HTML pages.

Nothing here knows what is shown.
"""
