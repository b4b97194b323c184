"""The style sheet of every page: light and dark by the reader's system, paper, and screens down to 400 px."""

from __future__ import annotations

from . import palette

_SHEET = """
*{box-sizing:border-box;}
html{color-scheme:light dark;-webkit-text-size-adjust:100%;}
body{margin:0 auto;max-width:70rem;padding:1.5rem clamp(1rem,4vw,2.5rem) 3rem;background:var(--ground);color:var(--text);
  font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;}
h1{font-size:clamp(1.35rem,4vw,1.9rem);line-height:1.2;margin:0 0 .4rem;letter-spacing:-.01em;overflow-wrap:anywhere;}
h2{font-size:1.2rem;line-height:1.3;margin:0 0 .6rem;}
h3{font-size:1rem;margin:1.4rem 0 .4rem;}
p{margin:.4rem 0;max-width:46rem;}
ul{padding-left:1.2rem;margin:.4rem 0;max-width:46rem;}
li{margin:.15rem 0;overflow-wrap:anywhere;}
a{color:var(--link);}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--link);outline-offset:2px;}
code{font-family:ui-monospace,"Cascadia Code",Menlo,Consolas,monospace;font-size:.9em;overflow-wrap:anywhere;}
.skip{position:absolute;left:-999rem;}
.skip:focus{left:1rem;top:.5rem;background:var(--ground);padding:.4rem .8rem;}
header{padding-bottom:.6rem;}
header p{font-size:1.05rem;}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;padding:.6rem 0;margin:0;max-width:none;
  border-block:1px solid var(--line);font-size:.92rem;}
section{margin-top:2.4rem;scroll-margin-top:1rem;}
.note,.legend,caption,small,footer{color:var(--muted);}
.note{font-size:.92rem;}
.verdict{font-weight:600;}
.warning{color:var(--bad);}
.good{color:var(--good);}
ul.warning::marker{color:var(--bad);}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.7rem;margin:1rem 0 .4rem;}
.facts div{background:var(--panel);border-radius:.5rem;padding:.7rem .9rem;}
.facts dt{color:var(--muted);font-size:.85rem;}
.facts dd{margin:0;}
.facts b{display:block;font-size:1.4rem;line-height:1.3;font-weight:650;letter-spacing:-.01em;}
.facts small{display:block;line-height:1.4;}
.scroll{overflow-x:auto;margin:.6rem 0;border-radius:.25rem;}
table{border-collapse:collapse;font-size:.92rem;line-height:1.4;min-width:min(100%,22rem);}
caption{text-align:left;padding-bottom:.35rem;font-size:.92rem;}
th,td{padding:.32rem .9rem .32rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line);font-weight:400;}
th:last-child,td:last-child{padding-right:.2rem;}
td.words{min-width:9rem;}
thead th.figure{white-space:normal;}
thead th{font-weight:600;border-bottom:2px solid var(--line);vertical-align:bottom;}
.figure{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;}
table.sum tbody tr:last-child>*{font-weight:650;border-bottom:0;border-top:2px solid var(--line);}
tr.best>*{font-weight:650;}
.chart table{width:100%;}
.chart td.draw{width:100%;min-width:7rem;padding-top:.28rem;padding-bottom:.28rem;}
.chart th,.chart td{border-bottom:0;}
.chart tbody th{white-space:nowrap;}
.chart+.chart,.chart+.legend{margin-top:1.6rem;}
svg{display:block;overflow:visible;}
svg text{fill:var(--text);font-size:12px;}
svg .small{fill:var(--muted);font-size:11px;}
.grid{stroke:var(--line);stroke-width:1;}
.limit{stroke:var(--bad);stroke-width:2;stroke-dasharray:5 3;}
.track{fill:var(--panel);}
.seam{stroke:var(--ground);stroke-width:1;}
.thin{stroke:var(--ground);stroke-width:.4;}
.inside{fill:var(--ground)!important;font-size:10px!important;pointer-events:none;}
.front{stroke:var(--blue);stroke-width:1.5;}
.hollow{fill:none;stroke:var(--grey);stroke-width:1.4;}
.ring{fill:none;stroke:var(--text);stroke-width:2;}
.name{paint-order:stroke;stroke:var(--ground);stroke-width:4px;font-weight:600;}
.plot{margin:2.2rem 0 .2rem;}
.paper{background:#fff;color:#222;border-radius:.5rem;padding:.5rem;}
.paper svg{max-width:100%;height:auto;}
.paper svg text{fill:#222;}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;padding:0;font-size:.88rem;max-width:none;}
.legend li{display:flex;align-items:center;gap:.4rem;}
details{margin:.8rem 0;}
summary{cursor:pointer;color:var(--link);width:fit-content;}
footer{margin-top:3rem;border-top:1px solid var(--line);font-size:.88rem;}
@media (max-width:40rem){
  th,td{padding-right:.6rem;}
  .inside{display:none;}
  tbody th{min-width:7rem;overflow-wrap:anywhere;}
  td.words{min-width:7rem;}
  tbody th.short{min-width:0;white-space:nowrap;}
  .chart tbody th{min-width:0;max-width:8.5rem;overflow-wrap:break-word;white-space:normal;}
  .facts{grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));}
  .facts b{font-size:1.2rem;}
}
@media print{
  body{max-width:none;padding:0;font-size:10pt;}
  nav,.skip{display:none;}
  section{margin-top:1.4rem;}
  .scroll{overflow:visible;}
  table{font-size:8pt;}
  th,td{padding-right:.5rem;}
  tr,.facts div,.chart,.plot{break-inside:avoid;}
  h2,h3{break-after:avoid;}
  *{print-color-adjust:exact;-webkit-print-color-adjust:exact;}
  details::details-content{content-visibility:visible;height:auto;}
  details>*{display:block;}
  a{color:inherit;text-decoration:none;}
  @page{margin:16mm;}
}
"""
_MARKS = "\n".join(f".{name}{{fill:var(--{name});}}" for name in palette.MARKS)

STYLE = f"""
:root{{{palette.variables(dark=False)}}}
@media screen and (prefers-color-scheme:dark){{:root{{{palette.variables(dark=True)}}}}}
{_MARKS}{_SHEET}@media print{{:root{{color-scheme:light;}}}}
"""
