"""The rules of docs/verifiers.md, each with answers that it accepts and answers that it refuses."""

from __future__ import annotations

import pytest

from rewards.math.verdicts import boxed

ACCEPTED = {
    "a letter is a unit in a text command, or where the other side says so": [
        ("5", "5 m"), (r"5\text{ m}", "5 m"), ("5 m", r"5\text{ m}"), ("5 m", r"500\text{ cm}"), ("5 m", "5m"),
        (r"\sqrt2 m", r"\sqrt2\text{ m}"), ("5 mg", r"5\text{ mg}"), ("5 N", r"5\text{ newtons}"), ("3 m", "m*3"),
        (r"\pi r^2 h", r"\pi h r^2"), (r"\frac13\pi r^2 h", r"\frac{\pi r^2 h}{3}"), ("2 g h", "2hg"),
        (r"\frac{mv^2}{2}", "0.5 m v^2"), ("12 mn^2", "12n^2m"), (r"\frac14 mg", r"\frac{mg}{4}"),
        (r"12 \text{ hours}", "12 h"), ("5 cm", "5"), ("60 km/h", r"60\ \mathrm{km/h}"), ("60", "60 km/h"),
        ("9.8 m/s^2", "9.8"), ("9.8", "9.8 m/s^2"), ("60 km/h", r"60\ \frac{\text{km}}{\text{h}}"),
        ("9.8 m/s^2", r"9.8\,\mathrm{m\,s^{-2}}"),
    ],
    "a word behind a number is a number, a unit or something that can be counted": [
        ("42", r"42 \text{ ways}"), ("42", r"42 \text{ apples}"), ("42", r"42 \text{ (ways)}"), ("42", r"42\text{ people}"),
        ("1", r"1 \text{ apple}"), ("0.5", r"0.5 \text{ cup}"), ("42", r"42 \text{ red apples in total}"),
        ("42", r"42 \text{ more}"), ("42", r"42 \text{ times}"), ("5", r"5 \text{ points per game}"),
        ("12", r"12 \text{ square units}"), ("12", r"12 \text{ cm squared}"), ("5 apples", "5"), ("12 apple", "12"),
        ("7", r"7\text{ sheep}"), ("12", r"12 \text{ quarters}"), ("25", r"5\text{ squared}"), ("120", r"5\text{ factorial}"),
        (r"5\pi", r"5\text{ pi}"), ("2/3", r"2\text{ thirds}"), ("21", r"42\text{ halves}"), ("500000", r"5\text{ lakh}"),
        ("0.05", r"5\text{ hundredths}"), ("-5", r"\text{negative }5"), ("-5", r"\text{minus }5"),
        ("5", r"\text{approximately }5"), ("5", r"\text{about } 5"), ("12", r"N = 12 \text{ (ways)}"),
    ],
    "quantities in several units are one quantity": [
        ("5 feet 6 inches", r"5\text{ ft }6\text{ in}"), ("5 feet 6 inches", r"66\text{ inches}"),
        ("1 hour 30 minutes", r"90 \text{ minutes}"), ("1 hour 30 minutes", r"1.5 \text{ hours}"),
        (r"30^\circ 15'", r"30.25^\circ"), (r"30^\circ 15'", r"30^{\circ}15'"), ("3:30 p.m.", "3:30 pm"),
        ("3:30", r"3:30\text{ p.m.}"), ("5 p.m.", r"5\text{ PM}"), (r"2\frac12 \text{ cups}", "2.5"),
        (r"2\frac12 \text{ cups}", r"2 1/2 \text{ cups}"),
    ],
    "named answers compare by name": [
        ("f(1)=2, f(2)=3", "f(2)=3, f(1)=2"), ("AB=4, CD=5", "CD=5, AB=4"), ("AB=4", "BA=4"),
        ("a_3=1, a_{37}=2", "a_{37}=2, a_3=1"), ("(x,y)=(1,2)", "(y,x)=(2,1)"), ("a:b=1:2", "b:a=2:1"),
        (r"\frac{x}{y}=2", r"\frac{y}{x}=\frac12"), ("f(x)=x^2", "g(t)=t^2"), ("f(x)=2x", "y=2x"),
        ("y=2x", "f(x)=2x"), ("W(x)=1", "W(n)=1"),
        (r"\text{length}=4, \text{width}=5", r"\text{width}=5, \text{length}=4"), ("x=2, x=3", "x_1=2, x_2=3"),
        ("x=5", "5"), ("f(3)=7", "7"), ("7", "f(3)=7"), ("(1,2)", "(x,y)=(1,2)"), ("a:b=1:2", "1:2"),
        ("P(A)=0.2, P(B)=0.5", "P(B)=0.5,P(A)=0.2"), (r"\text{Area}=12", "S=12"), ("f(x)=x+a", "f(t)=t+a"),
        ("AB=5", "5"), ("f^{-1}(3)=7", "7"),
        (r"\angle A=30^\circ, \angle B=40^\circ", r"\angle B=40^\circ, \angle A=30^\circ"),
    ],
    "an equation in one unknown is not solved by its right side": [
        ("5", "x+y=5"), ("293", "m+n=256+37=293"), ("293", "293=m+n"), ("12", "100m+n=1200-1188=12"),
        ("12", r"abc=3\cdot4=12"), ("6", "f'(1)=6"), ("6", r"\lim_{x\to0} f(x)=6"), ("-2", r"\det(A)=-2"),
        ("-2", r"\det A=-2"), ("0.5", r"\Pr(A)=\frac12"), ("12", r"\text{area of } \triangle ABC = 12"),
        ("2x", r"\frac{dy}{dx}=2x"), ("2x", r"\frac{d}{dx}x^2=2x"), ("2x", "f'(x)=2x"), ("2x", "y'=2x"),
        ("3/5", r"\cos A=\frac35"), ("5", "|z|=5"), ("5", "|AB|=5"), ("12", "[ABC]=12"), ("12", "S_{ABC}=12"),
        ("0.3", "P(A|B)=0.3"), ("0.3", "P(X=2)=0.3"), ("12", r"\text{the minimum value}=12"),
        ("3", r"\operatorname{Var}(X)=3"), ("5", r"\mathbb{E}[X]=5"), ("1/2", r"\frac{AB}{CD}=\frac12"),
        ("12", "a^2+b^2=5+7=12"), ("6", r"\gcd(a,b)=6"), ("1", r"\lim_{x \to 0} \frac{\sin x}{x} = 1"),
        ("391", r"17\times23=391"), ("62", "a+b+c = 12+25+25 = 62"), ("x^2-1", "(x-1)(x+1)=x^2-1"),
        ("12", r"\text{Area} = 3 \cdot 4 = 12"), ("12", r"A = \frac{1}{2} \cdot 6 \cdot 4 = 12"), ("12", "xy=12"),
        ("1/2", r"P(\text{at least one head})=\frac12"), ("1/2", r"P(\text{win})=\frac12"),
    ],
    "other notations of the same thing": [
        ("(0,1)", "]0,1["), ("(0,1]", "]0,1]"), ("[0,1)", "[0,1["), ("(0,1)", "]0;1["),
        (r"(-\infty,1)\cup(2,\infty)", r"]-\infty,1[\cup]2,+\infty["), ("1010_2", r"1010_{\text{two}}"),
        ("1010_2", "01010_2"), ("1010_2", "(1010)_2"), ("1010_2", r"1010 \text{ (base 2)}"),
        ("1010_2", r"1010 \text{ base } 2"), ("1A3_{16}", "1A3_{16}"), ("1A3_{16}", "(1A3)_{16}"), ("42", "４２"),
        ("1/2", "１／２"), ("5", r"\Rightarrow 5"), ("5", r"\implies x=5"), ("5", "⇒ 5"), (r"\binom{10}{3}", "C(10,3)"),
        (r"\binom{10}{3}", "C_{10}^{3}"), (r"\binom{10}{3}", "{}_{10}C_3"), (r"\binom{10}{3}", "10C3"),
        ("15!!", "2027025"), ("2027025", "2027025"), (r"\min(a,b)", r"\min\{b,a\}"), (r"\gcd(m,n)", r"\gcd(n,m)"),
        (r"\max(x,1)", r"\max\{1,x\}"), (r"1+i\sqrt3", r"2\operatorname{cis}60^\circ"),
        (r"1+i\sqrt3", r"2\text{ cis }\frac{\pi}{3}"), ("-1", "-1"),
        (r"\langle 1,2,3\rangle", r"\mathbf{i}+2\mathbf{j}+3\mathbf{k}"), ("(1,2,3)", r"\hat{i}+2\hat{j}+3\hat{k}"),
        ("(1,-2)", r"\mathbf{i}-2\mathbf{j}"), (r"\begin{pmatrix}1\\2\\3\end{pmatrix}", r"\vec{i}+2\vec{j}+3\vec{k}"),
        ("(1,2,3)", "i+2j+3k"), ("(0,2,3)", "2j+3k"),
        (r"\begin{pmatrix}1\\2\\3\end{pmatrix}", r"\langle 1,2,3\rangle"),
        ("(1/2,1)", r"\frac{1}{2}\hat{\imath}+\hat{\jmath}"),
        (r"\begin{pmatrix}1/2&1\\3/2&2\end{pmatrix}", r"\frac12\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        (r"\begin{pmatrix}-1&-2\end{pmatrix}", r"-\begin{pmatrix}1&2\end{pmatrix}"),
        (r"\frac12\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}0.5&1\\1.5&2\end{pmatrix}"),
        (r"\{1,2,3,\ldots,10\}", r"\{1,2,\ldots,10\}"), (r"1,2,\ldots,5", "1,2,3,4,5"),
        (r"\{1,\ldots,n\}", r"\{1,2,3,\ldots,n\}"), (r"\{2,4,\ldots,10\}", r"\{2,4,6,8,10\}"),
        (r"1,2,4,8,\ldots,64", "1,2,4,8,16,32,64"), ("[1,3]", r"[1,2]\cup[2,3]"), ("[1,3]", r"[1,2.5]\cup[2,3]"),
        ("(1,3)", r"(1,2]\cup(2,3)"), (r"(-\infty,\infty)", r"(-\infty,1]\cup(1,\infty)"),
        (r"\mathbb{R}", r"\text{all real numbers}"), (r"\text{all real numbers}", r"(-\infty,\infty)"),
        (r"x\in\mathbb{R}", r"\text{all real numbers}"), (r"\emptyset", r"\text{no solution}"),
        (r"\text{no solution}", r"\varnothing"), ("no real solutions", r"\text{No solution}"),
        (r"\emptyset", r"\{\}"), (r"\{x \mid x \ge 0\}", r"[0,\infty)"),
        (r"\{-x \mid x \ge 0\}", r"\{-x \mid x \ge 0\}"), (r"\{x \in \mathbb{R} \mid x>1\}", "x>1"),
        ("f(x)=0", r"f(x) = 0 \text{ for all } x"), (r"f(x) = cx \text{ for any constant } c", "f(x)=cx"),
        (r"f(x) = cx \text{ for any constant } c", "f(x)=kx"), ("f(x)=x", r"f(x)=x \text{ for all real numbers } x"),
        ("f(x)=x", r"f(x)=x, \forall x\in\mathbb{R}"), ("f(x)=x", r"f(x)=x \text{ for all } x \in \mathbb{R}"),
        (r"\frac{\pi}{4}+k\pi", r"x=\frac{\pi}{4}+n\pi, n\in\mathbb{Z}"),
        (r"2k\pi, k\in\mathbb{Z}", r"2n\pi \text{ where } n \text{ is an integer}"),
        (r"2k\pi, k\in\mathbb{Z}", r"2\pi m\ (m\in\mathbb{Z})"),
        ("f(x)=ax+b", r"f(x)=cx+d, \text{ where } c,d \text{ are constants}"),
        ("f(x)=ax", r"f(x)=ax \text{ for some constant } a"), (r"3 \pmod 7", "3"),
        (r"3 \pmod 7", r"x\equiv 3\pmod 7"), ("3", r"3 \pmod 7"), ("p=5,q=2;p=7,q=2", "(5,2),(7,2)"),
        ("(5,2),(7,2)", "p=7,q=2;p=5,q=2"), ("1;2;3", "1,2,3"), ("1,2;3", "1,2,3"),
        ("W(x)=1orW(x)=-1", r"W(n) = 1 \text{ and } W(n) = -1"), (r"\begin{aligned}x&=1\\y&=2\end{aligned}", "(1,2)"),
        (r"\begin{aligned}x&=1\\y&=2\end{aligned}", "x=1, y=2"), (r"\begin{cases}x=1\\y=2\end{cases}", "y=2, x=1"),
        (r"\left\{\begin{array}{l}x=1\\y=2\end{array}\right.", "x=1,y=2"),
        (r"f(n)=\begin{cases}1 & n \text{ odd}\\ 2 & n\text{ even}\end{cases}", r"\begin{cases}2 & \text{if } n\text{ is even}\\ 1 & \text{if } n \text{ is odd}\end{cases}"),
        (r"\begin{cases}x & x>0\\ -x & x \le 0\end{cases}", r"\begin{cases}-x, & \text{if } x \le 0,\\ x, & \text{if } 0<x.\end{cases}"),
        (r"\begin{cases}1 & x>0\\ 0 & \text{otherwise}\end{cases}", r"\begin{cases}1 & \text{for } x>0\\ 0 & \text{otherwise}\end{cases}"),
        (r"\text{The sum of two odd numbers is always an even number.}", r"\text{the sum of two odd numbers is always an even number}"),
        ("2027025", "15!!=2027025"), ("1 hour 30 minutes", r"1\text{ hour and }30\text{ minutes}"),
        (r"2\frac{1}{2}\text{ feet}", r"2.5\text{ ft}"), ("3 1/2 hours", r"3\frac12\text{ hours}"),
        ("3 1/2 hours", r"\frac72"),
    ],
    "two expressions are equal where they agree to many digits wherever they were evaluated": [
        (r"\int_0^1 e^{-x^2}dx", r"\int_0^1 e^{-t^2}\,dt"), (r"\int_0^1 x^2 dx", r"\frac13"),
        (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"), (r"\frac{n(n+1)}{2}", r"\sum_{i=1}^n i"),
        (r"\sum_{n=1}^\infty \frac{1}{n^2}", r"\sum_{k=0}^\infty \frac{1}{(k+1)^2}"), (r"\prod_{k=1}^{n} k", "n!"),
        (r"2\int_0^1 f(x)dx", r"\int_0^1 2f(x)dx"), (r"\sum_{k=0}^n \binom{n}{k}", "2^n"),
        ("55", r"\sum_{k=1}^{10} k = 55"), ("6", r"\int_0^1 f(x) dx = 6"),
        (r"\int_0^\infty e^{-x}\,dx", r"\int_0^\infty e^{-u}\,du"),
        (r"\sum_{k=1}^{100} \frac1k", r"\sum_{j=1}^{100} \frac{1}{j}"), ("|x|", r"\sqrt{x^2}"),
        (r"\frac{\pi}{2004!}", r"\frac{\pi}{2004!}"), (r"\frac{2\pi}{2004!}", r"\frac{\pi}{1002 \cdot 2003!}"),
        (r"2\ln x", r"\ln x^2"), (r"\sqrt{1-x^2}", r"\sqrt{(1-x)(1+x)}"), (r"\arcsin x", r"\frac\pi2-\arccos x"),
        (r"\sqrt{-1-x^2}", r"i\sqrt{1+x^2}"), ("x<3-a", "x+a<3"), ("2x+3y=5", "4x+6y=10"), ("x^2+y^2=4", "4-x^2=y^2"),
        (r"\lfloor x \rfloor + 1", r"\lfloor x+1 \rfloor"), ("(x+1)^{100}", "(x+1)^{50}(1+x)^{50}"),
        ("e^{x^2+y^2}", "e^{x^2}e^{y^2}"), (r"\log_2 8x", r"3+\log_2 x"), ("|x|+|y|=1", "2|x|+2|y|=2"),
        ("x^{x^{2}}", r"x^{x \cdot x}"),
    ],
}  # fmt: skip

REFUSED = {
    "a letter is a unit in a text command, or where the other side says so": [
        ("3 m", "3"), ("2 N", "2"), (r"\pi r^2 h", r"\pi r^2"), (r"\pi r^2", r"\pi r^2 h"), (r"\frac{m}{2} g", r"\frac{m}{2}"),
        (r"\frac14 mg", r"\frac14"), ("5 m", r"5\text{ s}"), ("5 m", r"5\text{ cm}"), ("5 m/s", r"5 \text{ km/h}"),
        ("5", "5x m"), ("x", "x m"), ("12 mn^2", "12 m^2n"), (r"\pi r^{2} h", r"\pi r^{2} \text{ hours}"),
    ],
    "a word behind a number is a number, a unit or something that can be counted": [
        ("42", rf"42 \text{{ {words}}}") for words in (
            "minus one", "times two", "factorial", "at least", "undefined", "or more", "and above", "modulo", "reversed",
            "doubled", "x", "to the power two", "million", "over two", "divided by seven", "is too large", "and a half",
            "something", "mod 5", "(approximately 43)", "(negative)", "base 7", "choose 2", "none", "infinite", "hundred",
            "squared", "cubed", "thirds", "halves", "less than x", "short of fifty", "below zero", "pi", "lakh",
        )
    ] + [
        ("42", r"\text{at least } 42"), ("42", r"\text{more than } 42"), ("42", r"\text{negative } 42"),
        ("42", r"42 \text{ plus } 1"), ("42", r"42 \text{ percent of } x"), ("42", r"\text{undefined } 42"),
        ("5", r"5 \text{ squared}"),
    ],
    "quantities in several units are one quantity": [
        ("1 hour 30 minutes", r"1\text{ hour }31\text{ minutes}"), ("1 hour 30 minutes", "90"),
        (r"30^\circ 15'", r"30^\circ"), (r"30^\circ 15'", r"30^\circ 16'"), ("3:30 p.m.", r"3:30\text{ AM}"),
        ("3:30 p.m.", "3:35 pm"), ("5 feet 6 inches", "5.6 feet"),
    ],
    "named answers compare by name": [
        ("f(1)=2, f(2)=3", "f(1)=3, f(2)=2"), ("AB=4, CD=5", "AB=5, CD=4"), ("a_3=1, a_{37}=2", "a_3=2, a_{37}=1"),
        ("(x,y)=(1,2)", "(y,x)=(1,2)"), ("a:b=1:2", "b:a=1:2"), (r"\frac{x}{y}=2", r"\frac{y}{x}=2"),
        ("f(3)=7", "f(4)=7"), ("a_5=9", "a_6=9"), ("AB=5", "CD=5"), ("x=5", "y=5"), ("f(x)=x^2", "g(t)=x^2"),
        ("P(A)=0.2", "P(B)=0.2"), ("f(1)=2", "f'(1)=2"), ("f(3)=7", "g(3)=7"), ("x_1=2,x_2=3", "x_1=3,x_2=2"),
        (r"\text{length}=4", r"\text{width}=4"), ("f(1)=2, f(2)=3", "f(1)=2, f(2)=4"),
        (r"\angle A=30^\circ, \angle B=40^\circ", r"\angle A=40^\circ, \angle B=30^\circ"),
        ("f(x,y)=x-y", "f(y,x)=x-y"),
    ],
    "an equation in one unknown is not solved by its right side": [
        ("5", "x^2=5"), ("5", "|x|=5"), ("5", "-x=5"), ("12", "e^x=12"), ("12", r"\ln x=12"), ("12", r"\cos x=12"),
        ("5", "x^{-1}=5"), ("x=5", "|x|=5"), ("x=5", "-x=5"), ("5", "2x=5"), ("5", "x+1=5"), ("5", r"\sqrt{x}=5"),
        ("5", r"\frac{1}{x}=5"), ("5", "5=x^2"), ("5", r"\log_2 x=5"), ("5", "2^x=5"), ("5", "n!=5"),
        ("5", r"\frac{x}{2}=5"), ("5", r"x \text{ squared}=5"), ("5", r"\text{twice } x=5"), ("5", "x^2=2+3=5"),
        ("5", r"r \cdot 2=5"), ("5", r"\sin\theta=5"), ("5", "x^3=5"), ("42", r"\text{not } x=42"),
        ("42", "m+n=40+1=42"), ("42", "m+n=41=42"), ("5", r"\lfloor x\rfloor=5"), ("5", "x-2=5"), ("5", "3-x=5"),
        ("5", r"\binom{n}{2}=5"), ("42", r"\text{maybe } = 42"), ("5", "x=y=z"), ("5", r"x \ne 5"),
        ("42", r"\text{41, or rather, } = 42"), ("5", r"\tan x = 5"), ("5", r"x \cdot \text{two} = 5"),
        ("x=5", "x^2=25"), ("5", "2=5"), ("5", "x:2=5"),
    ],
    "other notations of the same thing": [
        ("(0,1)", "]0,1]"), ("[0,1]", "]0,1["), ("1010_2", r"1010_{\text{three}}"), ("1010_2", "10101_2"),
        ("1A3_{16}", "1A4_{16}"), ("42", "４３"), (r"\binom{10}{3}", "C(10,4)"), ("15!!", "15!"), ("15!!", "2027024"),
        (r"\min(a,b)", r"\max(a,b)"), (r"\min(a,b)", r"\min(a,c)"), (r"1+i\sqrt3", r"2\operatorname{cis}30^\circ"),
        (r"\langle 1,2,3\rangle", r"\mathbf{i}+3\mathbf{j}+2\mathbf{k}"), ("(1,2)", "1+2i"), ("(1,2,3)", "i+2j-3k"),
        ("(1,2,3)", "i+2j+3k+1"), ("(1,2)", r"\begin{pmatrix}1&2\end{pmatrix}"),
        (r"\begin{pmatrix}1/2&1\\3/2&2\end{pmatrix}", r"\frac13\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        (r"\{1,2,3,\ldots,10\}", r"\{1,2,\ldots,11\}"), (r"\{1,2,3,\ldots,10\}", r"\{1,3,\ldots,9\}"),
        (r"\{1,\ldots,n\}", r"\{1,3,\ldots,n\}"), (r"\{1,2,\ldots,n\}", r"\{1,2,\ldots,m\}"),
        ("[1,3]", r"[1,2)\cup(2,3]"), ("[1,3]", r"[1,2]\cup[2.5,3]"), (r"\mathbb{R}", r"\text{all integers}"),
        (r"\mathbb{R}", r"\text{all positive real numbers}"), (r"\emptyset", r"\{0\}"), (r"\emptyset", "0"),
        (r"\{x \mid x \ge 0\}", r"\{-x \mid x \ge 0\}"), (r"\{x^2 \mid x \ge 0\}", r"\{x \mid x \ge 0\}"),
        ("f(x)=0", r"f(x)=0 \text{ for all } x > 0"), ("f(x)=0", r"f(x)=1 \text{ for all } x"),
        (r"f(x)=cx \text{ for any constant } c", "f(x)=c x^2"),
        (r"\frac{\pi}{4}+k\pi", r"x=\frac{\pi}{4}+2n\pi, n\in\mathbb{Z}"), (r"2k\pi", r"2n\pi"),
        ("f(x)=ax", "f(x)=x"), (r"3 \pmod 7", r"3 \pmod 8"), (r"3 \pmod 7", "4"), ("p=5,q=2;p=7,q=2", "(5,2),(2,7)"),
        ("p=5,q=2;p=7,q=2", "(5,2)"), ("W(x)=1orW(x)=-1", "W(x)=1"),
        (r"\begin{aligned}x&=1\\y&=2\end{aligned}", "(2,1)"),
        (r"\begin{cases}1 & n \text{ odd}\\ 2 & n\text{ even}\end{cases}", r"\begin{cases}2 & n \text{ odd}\\ 1 & n\text{ even}\end{cases}"),
        (r"\begin{cases}x & x>0\\ -x & x \le 0\end{cases}", r"\begin{cases}x & x>0\\ -x & x < 0\end{cases}"),
        (r"\text{The sum of two odd numbers is always an even number.}", r"\text{the sum of two odd numbers is always an odd number}"),
        ("5", r"41 \Rightarrow 5"), ("5", r"\Rightarrow 6"),
    ],
    "two expressions are equal where they agree to many digits wherever they were evaluated": [
        (r"\int_0^1 e^{-x^2}dx", r"\int_0^1 e^{-t^3}\,dt"), (r"\sum_{k=1}^{n} k", r"\frac{n(n-1)}{2}"),
        (r"\sum_{n=1}^\infty \frac{1}{n^2}", r"\sum_{k=1}^\infty \frac{1}{k^3}"),
        (r"\sum_{n=1}^\infty \frac{1}{n^2}", r"\sum_{n=1}^\infty \frac{1}{n^2+1}"), ("55", r"\sum_{k=1}^{10} k = 56"),
        ("55", r"\sum_{k=1}^{n} k = 55"), ("55", r"\sum_{k=1}^{10} k"), (r"\prod_{k=1}^n k", "(n+1)!"),
        (r"\sum_{k=1}^{100} \frac1k", r"\sum_{k=1}^{99} \frac1k"), ("|x-5|", "5-x"),
        (r"\lfloor x \rfloor", r"\lfloor x+0.0001 \rfloor"), ("|x-1000|", "1000-x"), ("x<3-a", "x+a>3"),
        ("2x+3y=5", "4x+6y=11"), ("x", "x+10^{-20}"), (r"\int_0^1 x^2 dx", r"\frac14"),
        (r"\sum_{n=1}^{\infty} \frac{1}{n^s}", r"\sum_{n=1}^{\infty} \frac{1}{n^{s+1}}"),
        (r"\sum_{n=1}^{\infty}\sum_{m=1}^\infty \frac{1}{nm(n+m)}", r"\sum_{n=1}^{\infty}\sum_{m=1}^\infty \frac{1}{nm(n+m+1)}"),
        (r"\sin(x)^{50}", r"\cos(x)^{50}"), (r"\sqrt{x^2-10x+25}", "x-5"), ("x^2+y^2=4", "x^2+y^2=5"),
        ("e^{x}", "e^{x+0.000000000001}"), ("x!", "x!+10^{-30}"),
    ],
}  # fmt: skip


def rows(table):
    return [pytest.param(*pair, id=f"{pair[0]} | {pair[1]}") for pairs in table.values() for pair in pairs]


@pytest.mark.parametrize(("gold", "answer"), rows(ACCEPTED))
def test_what_a_rule_accepts_is_correct(gold, answer):
    assert boxed(gold, answer) == "correct"


@pytest.mark.parametrize(("gold", "answer"), rows(REFUSED))
def test_what_a_rule_refuses_is_wrong(gold, answer):
    assert boxed(gold, answer) == "wrong"


@pytest.mark.parametrize(
    "gold", sorted({gold for table in (ACCEPTED, REFUSED) for p in table.values() for gold, _ in p})
)
def test_every_gold_of_a_rule_equals_itself(gold):
    assert boxed(gold, gold) == "correct"
