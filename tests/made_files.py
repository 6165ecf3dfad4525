"""PDF, Word, OpenDocument and EPUB files, written by hand so that nothing in them is by chance."""

import zipfile
from io import BytesIO
from xml.sax.saxutils import escape

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
WP = 'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing"'
ODF = " ".join(
    f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for short, name in (
        ("office", "office"),
        ("text", "text"),
        ("style", "style"),
        ("table", "table"),
        ("fo", "xsl-fo-compatible"),
    )
)


def packed(parts):
    """Return a zip archive of texts by name."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return file.getvalue()


def pdf(*pages, resources="", extra=(), catalog="", info=""):
    """Return a PDF of pages of operators; ``extra`` are objects, numbered from 10.

    Text is shown in ``/F1``, as PDF strings of Latin-1 in parentheses.
    """
    objects = {
        1: f"<</Type/Catalog/Pages 2 0 R{catalog}>>",
        2: f"<</Type/Pages/Count {len(pages)}/Kids[{kids(pages)}]>>",
        3: "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
        4: f"<<{info}>>",
        **{10 + at: one for at, one in enumerate(extra)},
    }
    for at, page in enumerate(pages):
        objects[100 + 2 * at] = (
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]"
            f"/Resources<</Font<</F1 3 0 R>>{resources}>>/Contents {101 + 2 * at} 0 R>>"
        )
        objects[101 + 2 * at] = stream(page)
    out = BytesIO(b"%PDF-1.7\n")
    out.seek(0, 2)
    places = {}
    for number in sorted(objects):
        places[number] = out.tell()
        body = objects[number]
        body = body if isinstance(body, bytes) else body.encode("cp1252")
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    table = out.tell()
    out.write(b"xref\n")
    for number, place in places.items():
        out.write(b"%d 1\n%010d 00000 n \n" % (number, place))
    out.write(b"trailer\n<</Size 999/Root 1 0 R/Info 4 0 R>>\nstartxref\n%d\n%%%%EOF" % table)
    return out.getvalue()


def kids(pages):
    return " ".join(f"{100 + 2 * at} 0 R" for at in range(len(pages)))


def stream(content, head=""):
    data = content.encode("cp1252")
    return b"<<%s/Length %d>>\nstream\n%s\nendstream" % (head.encode(), len(data), data)


def shown(text, *, at=(50, 700), size=12, before=""):
    """Return operators that show a text, a line of about eighty characters at a time."""
    words, lines = text.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 80:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    said = " T* ".join(f"({line})Tj" for line in (one.replace("(", "\\(") for one in lines))
    return f"q BT /F1 {size} Tf {1.2 * size} TL {before} {at[0]} {at[1]} Td {said} ET Q\n"


def docx(body, *, styles="", comments="", extra=None):
    """Return a Word file of paragraphs of XML, see :func:`run`."""
    parts = {"word/document.xml": f"<w:document {W} {WP}><w:body>{body}</w:body></w:document>"}
    if styles:
        parts["word/styles.xml"] = f"<w:styles {W}>{styles}</w:styles>"
    if comments:
        notes = f"<w:comment w:id='1'><w:p>{run(comments)}</w:p></w:comment>"
        parts["word/comments.xml"] = f"<w:comments {W}>{notes}</w:comments>"
    return packed(parts | (extra or {}))


def run(text, properties=""):
    look = f"<w:rPr>{properties}</w:rPr>" if properties else ""
    return f'<w:r>{look}<w:t xml:space="preserve">{escape(text)}</w:t></w:r>'


def paragraph(*runs, properties=""):
    return f"<w:p>{properties}{''.join(runs)}</w:p>"


def odt(body, *, styles=""):
    """Return an OpenDocument text of XML."""
    return packed(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f"<office:document-content {ODF}><office:automatic-styles>{styles}"
            f"</office:automatic-styles><office:body><office:text>{body}</office:text>"
            "</office:body></office:document-content>",
        }
    )


def epub(*pages, names=None):
    """Return an EPUB of pages of HTML."""
    names = names or [f"page{at}.xhtml" for at in range(len(pages))]
    items = "".join(f'<item id="p{at}" href="{name}"/>' for at, name in enumerate(names))
    refs = "".join(f'<itemref idref="p{at}"/>' for at in range(len(pages)))
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
    )
    book = f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest>'
    parts = {
        "META-INF/container.xml": container,
        "OEBPS/book.opf": f"{book}<spine>{refs}</spine></package>",
    }
    return packed(parts | {f"OEBPS/{name}": page for name, page in zip(names, pages, strict=False)})
