"""Words that ask, by language and by what they ask for."""

from __future__ import annotations

import re

# What a question can ask for.
ABOUT = (
    "anything",
    "what something is",
    "which one",
    "who",
    "when",
    "where",
    "why",
    "how",
    "how much",
    "yes or no",
)
ANYTHING, WHAT, WHICH, WHO, WHEN, WHERE, WHY, HOW, MEASURE, YES_NO = range(len(ABOUT))

# English, German, Dutch, Swedish, Norwegian, Danish, French, Spanish, Italian, Portuguese, Russian,
# Ukrainian, Polish, Czech, Turkish, Greek, Arabic, Hindi, Indonesian, Armenian, Hebrew, Bengali,
# Tamil, Telugu.
_WORDS = {
    WHO: (
        "who whom whose who's wer wem wen wessen vem hvem qui quién quiénes chi quem кто кого кому"
        " хто kto kdo ποιος من कौन किसने siapa"
        " ով מי কে কারা யார் ఎవరు"
    ),
    WHEN: (
        "when wann wanneer när hvornår quand cuándo quando когда коли kiedy kdy πότε متى कब kapan"
        " երբ מתי কখন কবে எப்போது எப்பொழுது ఎప్పుడు"
    ),
    WHERE: (
        "where where's wo woher wohin waar où dónde dove dov'è onde где куда откуда gdzie kde"
        " nerede πού أين कहाँ कहां"
        " որտեղ ուր איפה היכן לאן কোথায় কোথায় எங்கே எங்கு ఎక్కడ"
    ),
    WHY: (
        "why warum wieso weshalb waarom varför hvorfor pourquoi perché почему зачем чому dlaczego"
        " proč neden niçin γιατί لماذا क्यों mengapa kenapa"
        " ինչու למה מדוע কেন ஏன் ఎందుకు"
    ),
    HOW: (
        "how wie hoe hur hvordan hvor comment cómo come como как як jak nasıl πώς كيف कैसे bagaimana"
        " ինչպես איך כיצד কীভাবে কেমন எப்படி ఎలా"
    ),
    MEASURE: (
        "wieviel wieviele hoeveel combien cuánto cuánta cuántos cuántas quanto quanta quanti quante"
        " quantos quantas сколько скільки ile kolik kaç πόσο πόσα πόσοι πόσες كم कितने कितना कितनी"
        " berapa"
        " քանի որքան כמה কত কতজন কয়টি எத்தனை எவ்வளவு ఎన్ని ఎంత"
    ),
    WHAT: (
        "what's was wat vad hva hvad qu'est-ce est-ce que qué cosa che что що чем τι ما ماذا क्या"
        " ինչ מה কী কি என்ன ఏమిటి ఏం"
    ),
    WHICH: (
        "which what welche welcher welches welchem welchen welke welk vilken vilket vilka hvilken"
        " hvilket hvilke quel quelle quels quelles cuál cuáles quale quali qual quais какой какая"
        " какое какие каком який яка яке який która które który která hangi ποια ποιο أي"
        " որը איזה איזו কোন কোনটি எது எந்த ఏది ఏ"
    ),
}
ASKS_FOR = {word: about for about, words in _WORDS.items() for word in words.split()}
# They open statements just as well.
WEAK = frozenset(
    [
        "was",
        "wo",
        "wie",
        "wen",
        "qui",
        "que",
        "où",
        "come",
        "che",
        "como",
        "quanto",
        "quando",
        "как",
        "чем",
        "wanneer",
        "waar",
        "wat",
        "hva",
        "hvad",
        "vad",
        "när",
        "hur",
        "hoe",
        "hvor",
        "ile",
        "jak",
        "kde",
        "من",
        "ما",
        "מי",
        "מה",
        "כמה",
        "למה",
        "ուր",
        "որը",
        "ինչ",
    ]
)
# They open nothing but questions, in languages for which no pattern looks at the words behind them.
ONLY_ASK = frozenset(
    [
        "hoeveel",
        "waarom",
        "varför",
        "hvorfor",
        "hvem",
        "vem",
        "hvordan",
        "хто",
        "скільки",
        "чому",
        "kto",
        "kdo",
        "dlaczego",
        "kolik",
        "proč",
        "neden",
        "niçin",
        "nasıl",
        "kaç",
        "ποιος",
        "πότε",
        "πού",
        "γιατί",
        "πώς",
        "πόσο",
        "πόσα",
        "πόσοι",
        "πόσες",
        "كم",
        "متى",
        "أين",
        "لماذا",
        "كيف",
        "कौन",
        "किसने",
        "कब",
        "कहाँ",
        "कहां",
        "क्यों",
        "कैसे",
        "कितने",
        "कितना",
        "कितनी",
        "siapa",
        "mengapa",
        "kenapa",
        "bagaimana",
        "berapa",
    ]
)
# Behind "how", they ask for a measure.
MEASURED = "many|much|long|old|far|tall|big|large|high|deep|often|fast|hot|wide|heavy|late"
_MEASURED = frozenset(
    (
        f"{MEASURED.replace('|', ' ')} viel viele alt hoch lang lange groß weit oft många mycket"
        " gammal lång mange mye meget gammel"
    ).split()
)
_IS = frozenset(["is", "are", "was", "were", "does", "do", "did", "ist", "sind", "bedeutet"])
# In scripts without spaces, and in Korean: anywhere in the question. Chinese, Japanese, Korean,
# Thai.
_UNSPACED = tuple(
    (about, re.compile(pattern))
    for about, pattern in (
        (WHO, "谁|誰|だれ|누가|누구|ใคร"),
        (WHEN, "何时|何時|いつ|언제|เมื่อไ"),
        (WHERE, "哪里|哪儿|哪裡|何地|どこ|어디|ที่ไหน"),
        (WHY, "为什么|為什麼|なぜ|왜\\s|ทำไม"),
        (MEASURE, "多少|几[个年月天岁次]|いくつ|いくら|얼마|몇|เท่าไ|กี่"),
        (HOW, "怎么|怎麼|如何|どう|어떻게|อย่างไร"),
        (WHICH, "哪|どの|どれ|어느|어떤"),
        (WHAT, "什么|什麼|何[がをの年人]|무엇|อะไร"),
        (YES_NO, "吗|嗎|ですか|ますか|ましたか|でしょうか|ไหม"),
    )
)
UNSPACED = re.compile("|".join(pattern.pattern for _, pattern in _UNSPACED))
_LONGEST = 60  # words of a question that are looked at
_EDGES = "\"'“”‘’«»„¿¡()[]*_,.:;?؟،।։？"
_IN_WORDS = {ord("’"): "'", 0x055E: None}  # the question mark of Armenian stands in a word


def words_of(question: str, n: int) -> list[str]:
    """Return the first words of a question, in lower case, without the marks around them."""
    return [
        word.strip(_EDGES).translate(_IN_WORDS).lower() for word in question.split(maxsplit=n)[:n]
    ]


def about_of(question: str, prepositions: frozenset[str], verbs: frozenset[str]) -> int:
    """Return what a question asks for, by the words it begins with.

    Parameters
    ----------
    question
        With or without a mark.
    prepositions
        May stand before the word that asks: "in which year".
    verbs
        With one of these first, it asks for a yes or no.
    """
    words = words_of(question, _LONGEST)
    first = next(iter(words), "")
    if first in verbs:
        return YES_NO
    asks = (
        number
        for number, word in enumerate(words)
        if word in ASKS_FOR and (word not in WEAK or number == 0 or words[0] in prepositions)
    )
    place = next(asks, None)
    if place is None:
        if question.isascii():
            return ANYTHING
        return next((about for about, asks in _UNSPACED if asks.search(question)), ANYTHING)
    about, behind = ASKS_FOR[words[place]], "".join(words[place + 1 : place + 2])
    if about == HOW and behind in _MEASURED:
        return MEASURE
    return WHAT if about == WHICH and behind in _IS else about
