"""Pairs of gold and answer that are equal, and pairs that a weaker verifier takes for equal."""

from __future__ import annotations

import pytest

from rewards.math.verdicts import boxed, status

SAME = {
    "numbers": [
        (r"72", r"= 72"), ("3", "3rd"), (r"10^{th}", "10"), ("3", r"3^{\text{rd}}"), ("6", r"\textcolor{red}{6}"),
        (r"72", r"**72**"), (r"72", r"\text{Answer: } 72"),
        (r"11111111100", r"11,\! 111,\! 111,\! 100"), (r"137 \frac{1}{2}", r"137.5"), (r"2", r"\approx 2"),
        (r"0.000025", r"2.5 \times 10^{-5}"), ("4", "004"), ("72", "72.00"), ("100", "100."), ("1234", "1,234"),
        ("14916", r"14{,}916"), (r"10,\!080", "10080"), ("1234567", r"1\,234\,567"), ("1234567", "1 234 567"),
        ("1234567", r"1,234,567"), ("-5", "\u22125"), ("-5", "- 5"), ("1/2", ".5"), ("0.5", "1/2"),
        (r"\frac{1}{2}", "0.50"), ("7", "+7"), (r"-\frac34", r"\dfrac{3}{-4}"), (r"-\frac34", r"\frac{-3}{4}"),
        (r"-\frac34", "-3/4"), (r"\frac{3}{4}", r"\frac34"), ("-5/3", r"-1\frac{2}{3}"), ("8/3", "2 2/3"),
        ("8/3", r"2\tfrac{2}{3}"), (r"2\frac23", r"\frac{8}{3}"), ("1500", "1.5e3"), ("1500000", r"1.5 \times 10^{6}"),
        ("1500000", r"1.5 \cdot 10^6"), ("0.0015", "1.5e-3"), ("0.0015", r"1.5 \times 10^{-3}"),
        (r"6.02 \times 10^{23}", "6.02e23"), ("1000000", "10^6"), (r"\frac{1}{3}", r"0.\overline{3}"),
        (r"\frac{1}{6}", r"0.1\overline{6}"), (r"\frac{1}{7}", r"0.\overline{142857}"), ("1/3", r"0.\bar{3}"),
        ("1/3", r"0.\dot3"), ("1/3", "0.(3)"), ("1/3", "0.333..."), ("1/6", r"0.1666\ldots"),
        ("15/11", r"1.\overline{36}"), (r"0.\overline{3}", r"\frac13"), ("1", r"0.\overline{9}"),
        (r"\frac{1}{12}", "0.0833333333333333"), ("1/3", "0.333333"), ("2/3", "0.666667"), ("2/3", "0.6666666"),
        ("-1/3", "-0.333333"), (r"2\pi", "6.283185"), (r"\sqrt{2}", "1.414214"), (r"\pi", "3.14159265358979323846"),
        ("5000000", "5 million"), ("24", "2 dozen"), ("13", r"\text{13}"), ("1", "(((1)))"),
        ("1", "(" * 400 + "1" + ")" * 400), ("42", "$42$"), ("42", r"\(42\)"), ("3.5", r"3\frac{1}{2}"),
        (r"\frac{2}{4}", r"\frac{1}{2}"), ("½", "0.5"),
    ],
    "percent": [
        (r"\frac13", r"33\frac{1}{3}\%"), ("28", r"28\%"), (r"28\%", "28"), (r"10\%", "0.1"), ("0.1", r"10\%"),
        ("10", "10 percent"), (r"12.5\%", r"\frac{1}{8}"), (r"50\%", r"50\text{ percent}"),
        (r"33\frac13\%", r"\frac{100}{3}\%"),
    ],
    "units": [
        (r"864 \mbox{ inches}^2", r"864 in^2"), (r"12 \text{ m/s}", r"12\text{ m}/\text{s}"),
        (r"12 mph", r"12\ \text{miles per hour}"), (r"20^\circ\text{C}", r"20°C"), (r"30\pi \text{ cm}^2", r"30\pi"),
        (r"12", r"12 \mathrm{~cm}^2"), (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}^\circ"), ("5", r"5\text{ cm}"),
        (r"5\text{ cm}", "5"), (r"5\text{ cm}", "5 cm"), (r"5\text{ cm}", r"5\,\mathrm{cm}"),
        ("12", r"12\text{ apples}"), ("12", "12 apples"), (r"12\text{ apples}", "12 red apples"), ("5", "5 m"),
        (r"5 \text{ m}", r"5 \text{ meters}"), (r"5\text{ m}", r"500\text{ cm}"),
        (r"2\text{ hours}", r"120 \text{ minutes}"), (r"12\text{ cm}^2", r"12\text{ square centimeters}"),
        (r"12\text{ cm}^2", r"12\text{ cm}^{2}"), ("12", r"12 \text{ cm}^2"),
        (r"60\text{ km/h}", r"60\text{ km per hour}"), ("5", "5 square units"), (r"\frac12\text{ cup}", "1/2 cup"),
        ("72", "72 clips in total"),
    ],
    "degrees": [
        ("60", r"60^\circ"), (r"60^{\circ}", "60°"), ("60", "60 degrees"), (r"60^\circ", r"60\text{ degrees}"),
        (r"60^\circ", "60"), (r"\frac{1}{2}", r"0.5"), (r"22.5^\circ", r"\frac{45}{2}^\circ"),
    ],
    "money": [
        (r"5.4 \text{ cents}", r"\$0.054"), (r"\$1{,}250", "1250"), ("1250", r"\$1,250"), ("1250", "$1250"),
        (r"\$5", "5 dollars"), (r"\$0.50", "50 cents"), (r"\$2.50", r"\$2.5"), ("-5", r"-\$5"), ("18", "£18"),
        (r"\$3.5 \text{ million}", r"\$3{,}500{,}000"),
    ],
    "surds and constants": [
        (r"e^{i\pi}", r"-1"), (r"3\sqrt2", r"3*sqrt(2)"), (r"3\sqrt{2}", r"4.242641"), (r"\sqrt{2}", r"2^{0.5}"),
        (r"2i", r"\sqrt{-4}"), (r"\arctan\frac12", r"\tan^{-1}(1/2)"), (r"12!", r"479001600"), (r"3^{100}", r"9^{50}"),
        (r"2^{10000}", r"4^{5000}"), (r"\frac{1}{2}+\frac{\sqrt3}{2}i", r"\frac{1+i\sqrt{3}}{2}"), (r"4", r"2^2=4"),
        (r"2\sqrt{3}", r"\sqrt{12}"), (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}"), (r"2\sqrt3", r"2\sqrt{3}"), (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
        (r"\frac{\pi}{4}", r"\arctan 1"), ("4^{1/4}", r"\sqrt{2}"), (r"\log_2 8x", r"3 + \log_2 x"),
        (r"\ln 8", r"3\ln 2"), ("1-1/e", r"\frac{e-1}{e}"), ("e^{i\\pi/2}", "i"), ("3+2i", "2i+3"),
        (r"\frac{1}{1+i}", r"\frac{1-i}{2}"), (r"10\sqrt{2}", r"10 \cdot \sqrt2"), (r"\sqrt{2}", "√2"),
        (r"2\pi", "2π"), (r"1+\sqrt2", r"\sqrt{2}+1"), (r"\frac{1}{2^{99}}", "2^{-99}"),
        (r"2\pi", r"2\pi \approx 6.28"), (r"\infty", "infinity"), (r"\infty", r"+\infty"),
        (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"), ("|x|", r"\sqrt{x^2}"), (r"2\ln x", r"\ln x^2"),
    ],
    "expressions": [
        (r"\frac{x+1}{2}", r"0.5x+0.5"), (r"\sqrt[3]{x}", r"x^{1/3}"), (r"x^{2/3}", r"\sqrt[3]{x}^2"),
        (r"\vec{v} + \vec{w}", r"\vec{w}+\vec{v}"), (r"3\mathbf{i}+2\mathbf{j}", r"2\mathbf{j}+3\mathbf{i}"),
        (r"\frac{\pi}{4} + k\pi", r"k\pi + \frac{\pi}{4}"), (r"1-\cos^2(16x)", r"\sin^2(16x)"), (r"x^2+1", r"1 + x*x"),
        ("x+1", "1+x"), ("x^2-1", "(x-1)(x+1)"), (r"\tan^2(y)+1", r"\sec^2(y)"), ("2x", r"2 \cdot x"),
        ("3^{n+1}", r"3 \cdot 3^n"), (r"\frac{x}{2}+\frac{x}{3}", r"\frac{5x}{6}"), (r"\sin 2x", r"2\sin x \cos x"),
        ("(x+1)^2", "x^2+2x+1"), ("x^{2}", "x^2"), ("x^2", "x**2"), ("x^2", "x²"),
        (r"\frac{1}{x-1}-\frac{1}{x+1}", r"\frac{2}{x^2-1}"), ("n!", r"n \cdot (n-1)!"), (r"x_1+x_2", "x_2 + x_1"),
        ("ab+ac", "a(b+c)"), (r"\alpha\beta", r"\beta \alpha"), (r"e^{-x}", r"\frac{1}{e^x}"), (r"\frac{a}{b}", "a/b"),
        (r"x\cos 60^\circ", r"\frac{x}{2}"), (r"\lfloor x \rfloor + 1", r"1 + \lfloor x \rfloor"),
        (r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}"), (r"\sqrt{x}\sqrt{y}", r"\sqrt{xy}"), (r"f(x) = x^2", "x^2"),
        ("2x+1", "y = 2x+1"), ("y=2x+1", "2x+1"), (r"\int_0^1 f(x)\,dx", r"\int_{0}^{1} f(x) \, dx"),
    ],
    "equations": [
        (r"7:32", r"S_{MBCN}:S=7:32"), (r"\frac12", r"\frac{NO}{BO}=\frac12"), (r"2", r"2 = n"),
        (r"y=2x+1", r"y - 1 = 2x"), ("34x+45y-20z+100=0", "-34x-45y+20z-100=0"), ("x+y=1", "2x+2y=2"),
        ("y=2x+1", "2x-y+1=0"), ("x+y=1", "y=1-x"), ("x^2+y^2=4", "4=y^2+x^2"), ("5", "x=5"), ("x=5", "5"),
        ("5", "5 = x"), ("x=5", "x = 5"), ("5", "x = 2+3 = 5"), ("391", r"17 \times 23 = 391"), ("5", "x+y=5"),
        ("5", r"\text{Area} = 5"), ("5", "AB = 5"), ("12", r"f(3) = 12"), ("30", r"\angle ABC = 30^\circ"),
        ("x=5", r"\boxed{x = 5}"), ("x^2-1", "(x-1)(x+1)=x^2-1"),
    ],
    "lists and sets": [
        (r"\{1\pm\sqrt{5},-2\}", r"\{-2, 1+\sqrt5, 1-\sqrt5\}"), (r"(5,6)", r"x=5, y=6"), (r"x=5, y=6", r"(5,6)"),
        (r"A, C", r"AC"), (r"AC", r"C and A"), (r"\{1,2,3\}", r"\{3,1,2\}"), ("1, 2", "2, 1"),
        ("1331 and 1728", "1728, 1331"), ("1, 2", "1 and 2"), ("1, 2", r"1 \text{ or } 2"), ("1,2", r"\{2,1\}"),
        (r"\{1,2\}", "{1, 2}"), (r"\{1,2\}", r"\{1,2,2\}"), (r"\{1,3\} \cup \{2,4\}", r"\{1,2,3,4\}"),
        (r"\pm 2021", "2021, -2021"), (r"\pm 2", "-2, 2"), ("2, -2", r"\pm 2"), (r"x = \pm 2", "x = 2 or x = -2"),
        ("2,-2", r"x=\pm 2"), (r"1 \pm \sqrt{2}", r"1+\sqrt2, 1-\sqrt2"), (r"\{0.5, 1\}", r"\{1, \frac12\}"),
        (r"\emptyset", r"\varnothing"), (r"\emptyset", r"\{\}"), ("x=2, y=3", "y=3, x=2"), ("x=2, y=3", "2, 3"),
        ("2, 3", "x_1 = 2, x_2 = 3"), ("5", r"\{5\}"), (r"\{5\}", "5"), (r"\sqrt{2}, \sqrt{3}", r"3^{1/2}, 2^{1/2}"),
        ("1, 2, 3", "1; 2; 3"), ("1,000 and 2,000", "1000, 2000"),
    ],
    "tuples and intervals": [
        (r"(2,12) \cup (12,102)", r"(2,\,12) \cup (12,\,102)"), (r"x<1", r"-x>-1"), (r"x \le 1", r"1-x \ge 0"),
        (r"(0,1)", r"0<f(x)<1"), (r"(1,2]", r"1 < x ≤ 2"),
        (r"[-1,1]", r"\{x \in \mathbb{R} : -1 \leq x \leq 1\}"), (r"\left(3, \frac{\pi}{2}\right)", r"(3, \pi/2)"),
        (r"(1, \frac{9}{2})", "(1, 4.5)"), (r"\left(1, 2\right)", r"\left(1,2\right)"),
        ("(1,2)", r"\langle 1, 2 \rangle"), ("(1,2)", "(x,y) = (1,2)"), ("[0,1)", r"\left[0, 1\right)"),
        ("D=(0,1)", "(0,1)"), ("x<3", r"(-\infty,3)"), (r"(-\infty,3)", "x<3"), ("x<3", "3>x"),
        ("x \\leq 3", r"(-\infty, 3]"), ("0<x<1", "(0,1)"), ("[0, 1)", r"0 \le x < 1"),
        (r"(-\infty,-1)\cup(1,\infty)", r"(1,\infty)\cup(-\infty,-1)"),
        (r"(-\infty,-1)\cup(1,\infty)", r"x<-1 \text{ or } x>1"), (r"\{x \mid x < 3\}", r"(-\infty, 3)"),
        (r"\{x : x < 3\}", "x<3"), (r"x \in [0,1]", "[0,1]"), ("(0,1)", r"x \in (0,1)"),
        (r"x \neq 1", r"(-\infty,1)\cup(1,\infty)"), (r"\mathbb{R} \setminus \{1\}", r"x \neq 1"),
        (r"(-\infty,\infty)", r"\mathbb{R}"), ("x > 1 and x < 3", "(1,3)"), ("2x - y > 1", "1 < 2x - y"),
        ("(0.5, 1)", r"(\frac12, 1)"), (r"(1,2), (3,4)", r"(3,4), (1,2)"), (r"\{(1,2),(3,4)\}", r"\{(3,4),(1,2)\}"),
        (r"(0, \infty)", r"(0, +\infty)"), (r"[1,\infty)", r"x \geq 1"),
    ],
    "matrices": [
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
        (r"\begin{pmatrix} 1/2 & 0 \end{pmatrix}", r"\begin{pmatrix} 0.5 & 0 \end{pmatrix}"),
        (r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", "\\left(\\begin{array}{cc} a & b \\\\ c & d \\end{array}\\right)"),
        (r"\begin{pmatrix} -1 \\ \sqrt{12} \end{pmatrix}", r"\begin{pmatrix} -1 \\[2pt] 2\sqrt{3} \end{pmatrix}"),
    ],
    "other notations": [
        ("2516_8", "2516_{8}"), ("2516_8", r"2516_{\text{8}}"), ("1:2:3", "1 : 2 : 3"), ("1:2", "2:4"),
        ("12:00", r"12{:}00"), (r"12:00 \text{ p.m.}", "12:00 PM"), ("1, 2, \\ldots, n", "1, 2, ..., n"),
        (r"3 \pmod{7}", r"3 \pmod 7"),
    ],
    "words and letters": [
        (r"C", r"\text{C: the third}"), (r"ellipse", r"\text{an ellipse}"), (r"C", r"\mathbf{C}"),
        (r"\triangle ABC", r"\triangle ABC"), (r"\text{Evelyn}", "Evelyn"), ("Yes", r"\text{yes}"),
        (r"\text{even}", "Even."), (r"\text{June 20}", "June 20"), ("no solution", r"\text{No solution}"),
        ("True", r"\text{True}"), (r"\text{Navin and Luisa}", r"\text{Luisa}, \text{Navin}"), ("E", r"\text{E}"),
        ("B", r"\textbf{(B)}"), ("B", "(B)"), ("B", "B."), ("B", "b"), ("(B)", "B"), ("B", r"\textbf{(B) } 12"),
        ("B", r"\text{B. } 12"), ("B", r"\text{Option B}"), (r"\text{(C)}", "C"), ("x", "x"), ("B", r"\mathrm{B}"),
        ("B", r"(\text{B})"), ("D", r"\textbf{(D)}\ 42"),
    ],
}  # fmt: skip

DIFFERENT = {
    "numbers": [
        (r"42", r"42 \pm 1"), (r"42", r"[40, 44]"), (r"42", r"\ge 42"), (r"42", r"\ne 41"), (r"42", r"41/42"),
        (r"42", r"41|42"), (r"42", r"41 \to 42"), (r"42", r"41\\42"), (r"42", r"4\,2"), (r"42", r"42 + 0"),
        (r"42", r"\cancel{41} 42"), (r"42", r"42 (43)"), (r"2^{10000}", r"2^{9999}"), (r"5000!", r"4999!"),
        (r"3^{100}", r"3^{99}"), (r"1.5", r"1,5"), (r"30\pi", r"94.2"), (r"8", r"8.0000001"), (r"10", r"9.9999999"),
        (r"75", r"\frac34"), ("5", "-5"), ("12", "1,2"), ("23", "2 3"), ("7", "2 1/3"), ("7", r"2\frac{1}{3}"),
        ("2", "2 2/3"), ("1001", "1000"), ("1000000", "1000001"), ("1/3", "0.33"), ("1/3", "0.3333333334"),
        ("1/3", r"0.3"), (r"2\pi", "6.28"), (r"\pi", "3.14"), (r"\pi", r"\frac{22}{7}"), (r"\sqrt2", "1.41"),
        ("3.14159", r"\pi"), (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"), (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        (r"\frac{\pi}{2^{99}}", r"\frac{\pi}{2^{98}}"), (r"\frac{\pi}{2004!}", r"\frac{\pi}{2006!}"),
        ("0", r"10^{-30}"), ("0", "0.0000001"), (r"0.\overline{3}", "0.3"), ("1/3", r"0.3\overline{4}"),
        ("5", "5 million"), ("0", "1/0"), ("5", "5.000001"), ("14916", "14.916"), ("3.14", "3,14"),
        ("123456", "123456.4"), ("1500", "1.5e4"), ("10", "10e"), ("42", "42x"), ("4", "2+2i"),
        (r"\infty", r"-\infty"), ("3+2i", "3-2i"), ("42", "forty"), ("1234", "12,34"), ("840", "840840"),
        ("100", "1 00"), ("42", ""), ("42", "?"), ("42", "42?"),
    ],
    "percent": [
        ("50", "5000"), ("50", "0.5"), (r"50\%", r"0.5\%"), ("28", r"0.28"), (r"10\%", "100"),
        (r"5\%", r"\frac{1}{5}"), ("0.5", "50"),
    ],
    "units": [
        (r"42", r"42 \text{ (not 41)}"), (r"42", r"42 \text{ but also } 43"), (r"42", r"42 \text{ or not}"),
        (r"20^\circ\text{C}", r"20°F"), (r"60 mph", r"60 km/h"), (r"42", r"\text{not } 42"),
        (r"42", r"41, \text{ no, } 42"), (r"5\text{ cm}", r"5\text{ m}"), ("5 cm", "5 m"),
        (r"5\text{ cm}", r"5\text{ cm}^2"), (r"5\text{ kg}", r"5\text{ g}"), (r"12\text{ apples}", r"12\text{ pears}"),
        (r"5\text{ m}", r"5\text{ cm}"), (r"60\text{ km/h}", r"60\text{ km}"),
        (r"5\text{ hours}", r"5 \text{ minutes}"), (r"\$5", "5 cents"), (r"\$5", "£5"),
        (r"60^\circ", r"60\text{ radians}"), ("72", "72 is wrong"), ("72", "72 if x"), ("2", "2 x"), ("2", "2xy"),
        ("5", "not 5"), (r"12:00 \text{ p.m.}", r"12:00 \text{ a.m.}"),
    ],
    "expressions": [
        ("4", r"4\sqrt{2}"), ("4", r"4\sqrt(2)"), ("1-1/e", "1+1/e"), ("x+1", "x-1"), ("x", r"\sqrt{x^2}"),
        ("x^2", "x^3"), ("2x", "x2y"), (r"\sin x", r"\cos x"), (r"\sin x", r"\sin y"), ("x+1", "y+1"),
        ("x^2-1", "(x-1)(x+1"), ("x^2-1", "(x-1)(x+1) + "), ("2^x", "x^2"), ("ab", "a+b"),
        (r"\frac{a}{b}", r"\frac{b}{a}"), ("n!", "n"), (r"x_1", "x_2"), (r"\binom{n}{2}", r"\binom{n}{3}"),
        (r"\ln 2", r"\log_2 2"), (r"\sqrt[3]{2}", r"\sqrt{2}"), ("x+1", "x+1.0000001"), ("(x+1)^2", "x^2+1"),
        ("e^x", "e^{-x}"), ("|x|", "x"),
    ],
    "equations": [
        (r"\frac{x^2}{4}+\frac{y^2}{3}=1", r"\frac{x^2}{16}+\frac{y^2}{12}=1"), ("x+y=1", "x+y=2"), ("x=5", "y=5"),
        ("x=5", "x=6"), ("x+y=1", "1"), ("42", "41=42"), ("42", "42=41"), ("42", "x=41=42"), ("42", "41 = 42 = 42"),
        ("6.28", r"2\pi = 6.28"), ("42", r"7 \approx 42"), ("y=2x+1", "y=2x-1"), ("x^2", "x^2 = x^3"),
        ("5", "2x=5"), ("42", "x+41=42"), ("x+y=1", "x-y=1"), ("x>3", "x=3"),
    ],
    "unevaluated": [
        ("391", r"17 \times 23"), ("8", "2^3"), ("2", r"\sqrt{4}"), ("5", "2+3"), ("120", "5!"),
        ("5", r"\frac{2+3}{1}"), ("3", r"\lfloor \pi \rfloor"), ("6", r"\gcd(12,18)"), ("0.5", r"\sin 30^\circ"),
        ("10", r"\binom{5}{2}"), ("3", "|-3|"), ("5", "10-5"),
    ],
    "lists and sets": [
        (r"(5,6)", r"x=6, y=5"), (r"x=5,y=6", r"x=5"), (r"5", r"x=5,y=6"), (r"A, C", r"AB"), (r"AC", r"A"),
        (r"2", r"2, 2"), (r"3", r"1 \text{ or } 2 \text{ or } 3"), ("1331 and 1728", "1728"), ("1, 2", "1, 2, 3"),
        (r"\pm 2021", "2021"), ("2021", r"\pm 2021"), ("1, 2", "1, 1, 2"), ("1, 1, 2", "1, 2"),
        (r"\{1,2\}", r"\{1,3\}"), (r"\{1,2\}", "(1,2)"), ("(1,2)", r"\{1,2\}"), ("42", "40, 41, 42, 43"),
        ("72", "72 or 71"), ("72", "72, 71"), ("7", "6 and 7"), ("7", "7; 6"),
        ("1, 2, \\ldots, n", r"1, 3, 5, \ldots, 2n-1"), ("x=2, y=3", "x=3, y=2"), ("x=2, y=3", "3, 2"),
        (r"\{5\}", r"\emptyset"), ("1, 2", "12"), (r"\{1,3\} \cup \{2,4\}", r"\{1,2,3\}"), ("2", r"2 \text{ or } 3"),
        ("2", "2/3 or 2"), ("7", "6, 7, 8"),
    ],
    "tuples and intervals": [
        (r"x<1", r"-x<-1"), (r"(0,1)", r"0<f(x)<2"), (r"42", r"40 \le x \le 44"), (r"x<3", r"-x<-3"),
        ("(1,2)", "(2,1)"), ("(1,2)", "(1,2,3)"), ("(1,2)", "[1,2]"), ("[0,1)", "(0,1)"), ("[0,1)", "[0,1]"),
        ("D=(0,1)", "D=(0,1.5)"), ("x<3", r"x \leq 3"), ("x<3", "x>3"), ("x<3", "y<3"), ("x<3", "x<4"),
        ("x<3", r"(-\infty,3]"), ("x<3", "3"), (r"(-\infty,-1)\cup(1,\infty)", r"(-\infty,-1)"),
        (r"(-\infty,-1)\cup(1,\infty)", r"(-1,1)"), ("0<x<1", "[0,1]"), ("2x - y > 1", "2x - y < 1"),
        (r"x \neq 1", "x = 1"), ("(0,1)", "0"), (r"(1,2), (3,4)", "(1,2)"), ("x>1 and x<3", r"x<1 \text{ or } x>3"),
        (r"\mathbb{R}", r"x \ne 1"),
    ],
    "matrices": [
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 5 \end{pmatrix}"),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}"),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 & 3 \end{pmatrix}"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}"),
    ],
    "other notations": [
        ("2516_8", "2516_{9}"), ("10", "10_2"), ("1:2:3", "1:4:9"), ("12:00", "1:00"), ("1:15", "2:30"),
        ("1:2", "2:1"), ("1:2", "1:2:3"), ("12:30", "12:45"), (r"3 \pmod{7}", r"3 \pmod{8}"), ("1:2", "1"),
    ],
    "words and letters": [
        (r"C", r"\text{A or C}"), (r"C", r"C, D"), (r"C", r"\text{(C)}\ \text{and (B)}"),
        (r"42", r"\text{the correct answer}"), (r"yes", r"\text{yes or } \text{no}"), (r"\text{Evelyn}", "Eve"),
        ("Yes", "No"), ("yes", "yes and no"), ("yes", "not yes"), ("yes", "yes or no"), ("A", "A, B, C, D"),
        ("A", "B"), ("A", r"\text{(A) or (B)}"), ("A", "ABCD"), ("A", "A and B"), ("A", r"\text{A. B. C. D.}"),
        ("A", "(A)(B)"), ("B", "A) B"), ("even", "odd"), ("even", "odd or even"), ("A", ""), ("B", "12"),
        (r"\text{June 20}", "June 21"),
    ],
    "code": [
        ("0", "__import__('os').system('true')"), ("2", "len(open('/etc/hostname').name.split('/')) - 1"),
        ("4", "eval('2+2')"), ("2", "lambda: 2"), ("3", "[3][0]"), ("3", "max(1, 3)"),
    ],
}  # fmt: skip


def pairs(table):
    return [
        pytest.param(gold, answer, id=f"{kind}: {gold} | {answer}"[:90])
        for kind, rows in table.items()
        for gold, answer in rows
    ]


@pytest.mark.parametrize(("gold", "answer"), pairs(SAME))
def test_an_answer_in_another_form_is_correct(gold, answer):
    assert boxed(gold, answer) == "correct"


@pytest.mark.parametrize(("gold", "answer"), pairs(DIFFERENT))
def test_what_is_not_the_gold_is_not_correct(gold, answer):
    assert boxed(gold, answer) in ("wrong", "no_answer")


@pytest.mark.parametrize("gold", sorted({gold for rows in [*SAME.values(), *DIFFERENT.values()] for gold, _ in rows}))
def test_every_gold_equals_itself(gold):
    assert boxed(gold, gold) == "correct"


@pytest.mark.parametrize(
    ("gold", "answer"), [("391", r"17 \times 23"), ("8", "2^3"), ("2", r"\sqrt{4}"), ("120", "5!")]
)
def test_unevaluated_answers_count_when_they_are_allowed(gold, answer):
    assert boxed(gold, answer, allow_unevaluated=True) == "correct"
    assert boxed(str(int(gold) + 1), answer, allow_unevaluated=True) == "wrong"


@pytest.mark.parametrize(
    ("gold", "completion", "expected"),
    [
        ("7", r"It is either \boxed{6} or \boxed{7}.", "wrong"),
        ("7", r"\boxed{6} or \boxed{7}", "wrong"),
        ("7", r"\boxed{7} or \boxed{6}", "wrong"),
        ("3", r"\boxed{1}, \boxed{2}, \boxed{3}", "wrong"),
        ("3", r"\boxed{1}\boxed{2}\boxed{3}", "wrong"),
        ("1, 2", r"\boxed{1} and \boxed{2}", "correct"),
        (
            "12",
            r"I get \boxed{10}. That forgets the two corner tiles, so the corrected total is \boxed{12}.",
            "correct",
        ),
        ("10", r"I get \boxed{10}. That forgets the two corner tiles, so the corrected total is \boxed{12}.", "wrong"),
        ("5", "\\[\\boxed{5}\\]\n\n\\[\\boxed{5}\\]", "correct"),
        ("42", "The answer is definitely not 42.", "wrong"),
        ("42", "The answer is not 42.", "wrong"),
        ("42", "The answer is 42 or 43.", "wrong"),
        ("42", "The answer is 42, 43", "wrong"),
        ("42", "The answer is 42, 43 or 44.", "wrong"),
        ("42", "The answer is 42.", "correct"),
        ("42", "The answer is **42** apples.", "correct"),
        ("42", "The answer is: 42", "correct"),
        ("B", "The answer is (B).", "correct"),
        ("B", "Answer: B", "correct"),
        ("B", "Answer: A or B", "wrong"),
        (r"\frac{3}{4}", r"The final answer is $\frac{3}{4}$.", "correct"),
        ("18", "Answer: $18. She had $20 before.", "correct"),
        ("72", "#### 72 or 71", "wrong"),
        ("72", "#### not 72", "wrong"),
        ("5", "The final answer is 9**9**9", "wrong"),
    ],
)
def test_where_the_answer_stands_and_whether_it_is_one(gold, completion, expected):
    assert status(gold, completion) == expected


@pytest.mark.parametrize(
    "gold",
    [
        "", r"\boxed{}", r"\frac{3}{", r"\frac{1}{", "x +", "((1)", r"\sqrt{", "41=42", None, float("nan"), [1, 2],
        "He walks 5 floors.", "proof", "5 (five)", "$", "?", "...", "\\", "We get 5 because x is 3.",
        "9. Mira walks one floor up while Tom walks five floors, so his way is five times as long.",
        "See the picture for the solution of this problem.", "First we add 3 and 4. Then the result is 7.",
    ],
)  # fmt: skip
def test_a_gold_that_is_no_answer_scores_nothing(gold):
    assert boxed(gold, "5") == "gold_unscorable"
    assert status(gold, "no box") == "gold_unscorable"
