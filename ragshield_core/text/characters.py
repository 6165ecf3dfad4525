"""Kinds of characters, for use in the brackets of regular expressions."""

# Default_Ignorable_Code_Point (DerivedCoreProperties.txt of the Unicode character database): these
# have no glyph of their own. Soft hyphens, joiners, bidirectional controls, variation selectors and
# tag characters are among them.
IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
# Combining marks that Latin letters are drawn over with.
MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f\u3099\u309a"
# Single-letter scripts aside, words of these have no spaces between them.
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
